"""A local web page for "what K at this load?": the simulator's answer, a second after a slider has moved.

``state`` is what a page asks, as its address holds it; ``quick`` answers it on what ``base`` keeps, ``desk``
lets so many ask at once as the machine can serve, ``job`` runs the whole ``recommend`` behind the page;
``controls``, ``page`` and ``charts`` show question and answer, ``app`` wires them, ``guard`` says who may
ask, ``server`` listens.
"""
