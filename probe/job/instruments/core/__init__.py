"""Code shared by all instruments: recorder, patches, hook tables, delivery from devices."""
