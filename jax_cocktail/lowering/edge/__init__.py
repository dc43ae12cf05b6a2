"""The room that speaks to JAX: jaxprs in, custom calls out."""
