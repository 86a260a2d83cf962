#!/usr/bin/env bash
# Package:  tokenizers 0.23.3 (Hugging Face), the ByteFallback decoder of Llama 2, Mistral and Gemma
# Expected: an answer that is cut inside a character loses that character only, as with byte-level
#           vocabularies: the text before it is whole.
# Seen:     decode takes the byte tokens since the last ordinary token as one, and where they are no
#           whole UTF-8 it gives U+FFFD for each of them, so characters that were complete are lost
#           too. DecodeStream on the same ids gives these characters: stream and whole answer
#           differ.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q tokenizers==0.23.3
cd "$home"
venv/bin/python - <<'PY'
import tokenizers
from tokenizers import Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream

RARE, LOST = "\U00020bb7", "\ufffd"  # a character that has no token of its own; the sign for none
vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁name": 256, ":": 257}
fallback = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
spaces = decoders.Replace("▁", " ")
fallback.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])

print("tokenizers", tokenizers.__version__)
ids = [256, 257, *RARE.encode(), *RARE.encode(), *RARE.encode()]
seen = {}
for missing in (0, 1):
    kept = ids[: len(ids) - missing]
    stream = DecodeStream(skip_special_tokens=True)
    streamed = "".join(stream.step(fallback, token) or "" for token in kept)
    whole = fallback.decode(kept)
    seen[missing] = (whole.count(RARE), streamed.count(RARE), whole.count(LOST))
    print(f"{missing} of {len(ids)} ids missing: decode {ascii(whole)}, stream {ascii(streamed)}")
raise SystemExit(0 if seen == {0: (3, 3, 0), 1: (0, 2, 11)} else 1)
PY
