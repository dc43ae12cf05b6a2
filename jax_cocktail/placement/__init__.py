"""Where work and values live on a mesh of units: axis classes, tiling, placement, the recurrence bound."""
