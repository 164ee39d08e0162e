"""kplan.live against a server of the standard library that behaves as vLLM or SGLang, or misbehaves."""
