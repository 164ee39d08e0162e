"""A local web page for "what K at this load?": the simulator's answer, a second after a slider has moved.

``state`` is what a page asks, as its address holds it; ``quick`` answers it, ``desk`` lets so many ask at
once as the machine can serve, ``job`` runs the whole ``recommend`` behind the page; ``page`` and ``charts``
show the answer, ``app`` wires them, ``guard`` says who may ask, ``server`` listens.
"""
