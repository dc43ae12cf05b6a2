"""The uTask IR: values, operators, nested uTasks, type rules, rewriting, folding, printer."""
