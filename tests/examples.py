"""How many examples the dear properties play."""

from __future__ import annotations

from hypothesis import settings

# A quarter of the loaded profile's: `@few` is for a property with an example that costs over 5 ms.
few = settings(max_examples=settings().max_examples // 4)
# A tenth: `@fewest` is for a property with an example that costs over 50 ms.
fewest = settings(max_examples=settings().max_examples // 10)
