"""Reading model weights: safetensors folders and GGUF files behind one reader."""

from llmrt.weights.loader import Weights, WeightsError, open_weights

__all__ = ["Weights", "WeightsError", "open_weights"]
