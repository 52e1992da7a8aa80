"""What every part of the server uses: roles, allowances, tokens, threads, request bodies."""
