"""Stitching of memory-bound operators: AStitch (ASPLOS'22, "A"), FusionStitching (arXiv 2009.10924, "F").

An operator is stitched to the ones that read it by one of four schemes (A, section 3.1). The first two are
decided here. The other two follow from placement and the memory plan, since a lane loop ends where a value
must be in memory.

    Independent   operators without an edge share a lane loop         `fuse`
    Local         a value in a register of the lane that reads it     `residence`, `fuse`
    Regional      in memory of the unit that reads it                 `schedule.memory.sharing`,
                                                                      `schedule.sync.block_barriers`
    Global        in memory of all units, behind a barrier            `schedule.sync.barriers`

The modules, in the order in which a program meets them:

    partition           the scope: subgraphs that become regions, remote stitching (A, section 4.1)
    collapse_axes       element-wise work on short groups moves to long rows (ours)
    share_exponentials  a softmax and its logarithm share their exponentials (ours)
    split_reductions    task splitting (A, section 3.3): parts of a long reduction
    split_scans         task splitting of `argmax`, `argmin` and running totals
    splitting           the parts of both, and their number
    residence           computes a value again, or stores it (A, section 4.3; F, section 4: sub-roots)
    fuse                dominants, their merging, lane loops (A, section 4.3; F, section 4: kernel packing)
    edges               the scheme of each edge of a planned program, with reason and bytes

Not in this room: mapping of lane loops to threads (`codegen.mapping`), and text (`codegen.element`,
`codegen.reduce_nest`). `docs/paper.md` lists all mechanisms of both papers, with tests or what is missing.
"""
