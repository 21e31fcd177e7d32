"""Handlers: one file per request, whose header is its specification. Importing them fills dispatch.HANDLERS."""

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
