"""Whether a response is right. Graders import their libraries when they grade."""
