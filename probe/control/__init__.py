"""What is asked of a live process: stacks, names, snippets; see ARCHITECTURE.md."""
