"""The server's HTTP interface: routes, access over TCP, limits."""
