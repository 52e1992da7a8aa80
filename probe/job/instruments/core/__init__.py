"""What every instrument uses: the recorder, patches, hook tables, delivery from devices."""
