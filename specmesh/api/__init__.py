"""The HTTP API of both daemons: OpenAI's shapes, specmesh's numbers beside them."""
