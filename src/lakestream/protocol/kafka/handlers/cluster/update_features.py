"""UpdateFeatures (key 57), v0-2.

The levels of all features are final: they change with the program that the brokers run. A request for a level that a
feature has succeeds and changes nothing; any other level is rejected (95), and so are all changes of that request.

v1 type of upgrade, validate only · v2 only a top-level error
"""

from collections import Counter
from typing import Any, Final

from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.handlers.cluster.api_versions import FEATURES
from lakestream.protocol.kafka.services import ClusterContext

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
_LEVELS: Final = dict(FEATURES)


@handles(57, versions=range(0, 3))
async def update_features(call: Call, context: ClusterContext) -> Body:
    updates = call.body.feature_updates
    times = Counter(update.feature for update in updates)
    errors = {update.feature: _error(update, call.version, times[update.feature]) for update in updates}
    failed = [error for error in errors.values() if error is not None]
    if not failed:
        done = {"error_code": Code.NONE, "error_message": None}
        return done | {"results": [{"feature": name} | done for name in errors]}
    if call.version > 1:
        return {"error_code": failed[0].code, "error_message": error_message(failed[0])}
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "results": [
            {"feature": name, "error_code": reason.code, "error_message": error_message(reason)}
            for name, reason in ((name, error or failed[0]) for name, error in errors.items())
        ],
    }


def _error(update: Any, version: int, times: int) -> KafkaError | None:
    """Returns why the update is rejected, or None if the feature has that level."""
    name, level = update.feature, update.max_version_level
    if times > 1:
        return KafkaError(Code.INVALID_REQUEST, f"feature {name} is named twice in one request")
    if version > 0 and update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return _invalid(f"Invalid update type for feature {name}.")
    if name not in _LEVELS:
        return _invalid(f"Invalid update version {level} for feature {name}. The brokers do not support this feature.")
    if level < 0:
        return _invalid(f"Invalid update version {level} for feature {name}. A feature version cannot be less than 0.")
    if level > _LEVELS[name]:
        return _invalid(
            f"Invalid update version {level} for feature {name}. The brokers only support versions 0-{_LEVELS[name]}"
        )
    if level < _LEVELS[name]:
        return _invalid(
            f"Invalid update version {level} for feature {name}. Its level {_LEVELS[name]} is final: it belongs to the"
            " program that the brokers run"
        )
    return None


def _invalid(text: str) -> KafkaError:
    return KafkaError(Code.INVALID_UPDATE_VERSION, text)
