"""The uTask IR: values, operators, nested uTasks, verifier, printer, interpreter."""
