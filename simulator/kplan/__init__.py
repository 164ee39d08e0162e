"""kplan: what K at this load? A simulator and optimizer of speculative decoding in LLM serving."""

__version__ = "0.1.0"
