"""The two daemons: sockets, threads and clocks around the cores, which decide.

Branches here ask what came, whether it is time, or what a library answered. These others choose, each for a reason:

link/sockets.py      `objection`: what a frame is refused for, before it is decoded; limits are core/peer_limits.py's
                     PAUSE, MAX_..._PER_TURN: a flood must not keep the loop from its other sockets
link/sockets.py, dealer.py  `_undecoded`: who speaks another version, or may have lost what nobody repeats, is answered
link/dealer.py       `look`: when a connection is opened anew, as libzmq's monitor tells how its handshake ended
                     `send`: no room for a CLOSE, which nobody repeats, ends the connection
link/vocabulary_handshake.py  whether VOCAB is asked for, or the model's own vocabulary is the verifier's;
                     `_translated`: by core's `compare`, as it is, translated, or not at all
verifier/daemon.py   `_encoded`, `prompt_of`: what is encoded, and whether the target's format is added
                     `PromptEncoder.add`: grammars have a thread of their own; `_may_wait`: tokens, but a text's first
                     `core_of`, and DrafterLoop's KV slots: how much is kept, as engines and verifiers allow
                     `__init__`: FAST_ON_CPU where steps need the cores; `_tick`: no pause counts without sessions,
                     and nothing is progress while strangers are not kept out
                     `_carry_out`: the end of a session that is sent again counts once
verifier/drafters.py `_message`: bytes count for a session that this drafter has heard of
                     `_hello`: the same one again is answered again; `receive`: no frame counts before HELLO
                     `_welcome`: a host's name is for who knows it; `requested`: an OPEN must not contradict itself
drafter/upstream_link.py  `DraftGrammars`: one set for a vocabulary; an engine of ids alone needs none
                     `_has_room`: bytes that wait for a core in a step, which only the loop sees
                     `_error`: a code ends the connection, the drafter or nothing
drafter/daemon.py    `DraftModel.step`: rows that memory cannot follow are left out; each guesses until it has enough;
                     thread counts are for engines on the CPU
                     `served`: the target's name where verifiers are several; `_take`: nothing new once it stops
                     `_attempt`: an unusable verifier is given up, the last one's error ends the daemon
runtime/loops.py     `stuck`: in a step that hangs no HELLO or PING is answered or sent: silence shows it
                     `_hear`: tokens that come fast are taken every DOZE; `_look`: when a stopped daemon has drained
runtime/process.py   who looks after the process, by which exit code it ends; `thread_share`: whose threads may change
serve.py             `_keys`, `model_hash`: as settings say
"""
