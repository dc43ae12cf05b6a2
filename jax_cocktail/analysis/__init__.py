"""Facts about programs that several passes ask for, and the verifier. Nothing here changes a program."""
