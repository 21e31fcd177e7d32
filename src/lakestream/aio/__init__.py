"""Building blocks for asyncio and processes that do not depend on Lakestream's own layers."""
