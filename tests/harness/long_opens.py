"""The frames of a long OPEN as the daemons make and take them: with the codec's bodies."""

from functools import partial

from specmesh.core import request_frames
from specmesh.core.verifier.incoming_open import IncomingOpen
from specmesh.wire import messages as m
from specmesh.wire.codec import decode_body, write_body

frames_of = partial(request_frames.frames_of, write=write_body)
incoming_open = partial(IncomingOpen, read=partial(decode_body, m.Open))
