"""Language models in Flax NNX: architectures, LoRA, KV cache, weights in and out, tokenizers, chat templates."""
