"""HTTP: bytes → decide → bytes. The only user of `aiohttp.web`."""
