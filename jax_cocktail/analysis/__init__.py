"""Facts about programs that several passes need, and the verifier. No module here changes a program."""
