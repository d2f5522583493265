"""SmolLM2-135M: a real instruction model, a common base and three RL specialists of it, on one GPU."""
