"""The benchmark models: seven programs with loops, branches and recursion, written as ordinary JAX.

They are the models of COCKTAILER (OSDI'23, section 6) with the sizes given there. Weights and inputs are
synthetic, from a fixed seed. Sequence lengths, policies and the parse tree follow the statistics of the
paper's artifact. `RECURSIVE` holds programs that call themselves, one of which is the paper's tree model.
`models.programs` has small programs, and `models.gradients` gradients.
"""

from jax_cocktail_tools.models import attention, blockdrop, calls, lstm, nasrnn, rae, seq2seq, skipnet, trees
from jax_cocktail_tools.models.measure import interleaved_times, largest_difference
from jax_cocktail_tools.models.model import Model

MODELS: dict[str, Model] = {
    module.MODEL.name: module.MODEL for module in (lstm, nasrnn, attention, seq2seq, blockdrop, skipnet, rae)
}
RECURSIVE: dict[str, Model] = {model.name: model for model in (*trees.MODELS, *calls.MODELS)}

__all__ = ["MODELS", "RECURSIVE", "Model", "interleaved_times", "largest_difference"]
