"""How answers are written: tables, figures, comparisons."""
