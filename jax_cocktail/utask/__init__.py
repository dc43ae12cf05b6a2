"""The uTask IR: values, operators, nested uTasks, type rules, rewriting, printer, interpreter."""
