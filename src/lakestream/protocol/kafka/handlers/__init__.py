"""One request, one file; the header of each is its specification. Importing them fills dispatch.HANDLERS."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
