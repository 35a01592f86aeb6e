"""Building blocks of decoders. Plain objects over tensors: a step calls hundreds of them, so calls must be cheap."""
