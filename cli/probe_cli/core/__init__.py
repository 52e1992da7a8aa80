"""What every command uses: session, transport, endpoints, terminal."""
