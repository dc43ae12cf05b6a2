"""Where units and threads wait for each other."""
