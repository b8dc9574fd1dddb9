"""Language models in Flax NNX: architectures, LoRA, KV cache, weights, tokenizers and chat templates."""
