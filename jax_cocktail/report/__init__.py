"""The report of `explain`: a value, and what shows it."""

from jax_cocktail.report.report import Report as Report
from jax_cocktail.report.values import Captured as Captured
from jax_cocktail.report.values import Counts as Counts
from jax_cocktail.report.values import Edge as Edge
from jax_cocktail.report.values import Flow as Flow
from jax_cocktail.report.values import Left as Left
from jax_cocktail.report.values import Memory as Memory
from jax_cocktail.report.values import Node as Node
from jax_cocktail.report.values import Setting as Setting
from jax_cocktail.report.values import Stock as Stock
from jax_cocktail.report.values import Trial as Trial
