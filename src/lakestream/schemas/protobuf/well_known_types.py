"""Files that a schema may import without a reference: the common types of Google and Confluent, in our own notation.

`google/protobuf/*` is part of protoc. Confluent's serializers register no references for any of these files.
"""

from typing import Final

_MESSAGES: Final = {
    "google/type/color.proto": "Color: float red, float green, float blue, google.protobuf.FloatValue alpha",
    "google/type/date.proto": "Date: int32 year, int32 month, int32 day",
    "google/type/decimal.proto": "Decimal: string value",
    "google/type/expr.proto": "Expr: string expression, string title, string description, string location",
    "google/type/fraction.proto": "Fraction: int64 numerator, int64 denominator",
    "google/type/interval.proto": (
        "Interval: google.protobuf.Timestamp start_time, google.protobuf.Timestamp end_time"
    ),
    "google/type/latlng.proto": "LatLng: double latitude, double longitude",
    "google/type/localized_text.proto": "LocalizedText: string text, string language_code",
    "google/type/money.proto": "Money: string currency_code, int64 units, int32 nanos",
    "google/type/postal_address.proto": (
        "PostalAddress: int32 revision, string region_code, string language_code, string postal_code,"
        " string sorting_code, string administrative_area, string locality, string sublocality,"
        " repeated string address_lines, repeated string recipients, string organization"
    ),
    "google/type/quaternion.proto": "Quaternion: double x, double y, double z, double w",
    "google/type/timeofday.proto": "TimeOfDay: int32 hours, int32 minutes, int32 seconds, int32 nanos",
    "confluent/type/decimal.proto": "Decimal: bytes value, uint32 precision, int32 scale",
    "confluent/type/variant.proto": "Variant: bytes metadata, bytes value",
}
"""Files with one message, whose fields are numbered from 1."""

_ENUMS: Final = {
    "google/type/calendar_period.proto": (
        "CalendarPeriod: CALENDAR_PERIOD_UNSPECIFIED DAY WEEK FORTNIGHT MONTH QUARTER HALF YEAR"
    ),
    "google/type/dayofweek.proto": (
        "DayOfWeek: DAY_OF_WEEK_UNSPECIFIED MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY"
    ),
    "google/type/month.proto": (
        "Month: MONTH_UNSPECIFIED JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER"
    ),
}
"""Files with one enum, whose values are numbered from 0."""

_TEXTS: Final = {
    "google/type/datetime.proto": """syntax = "proto3";
package google.type;
import "google/protobuf/duration.proto";
message DateTime {
  int32 year = 1; int32 month = 2; int32 day = 3; int32 hours = 4; int32 minutes = 5; int32 seconds = 6;
  int32 nanos = 7;
  oneof time_offset { google.protobuf.Duration utc_offset = 8; TimeZone time_zone = 9; }
}
message TimeZone { string id = 1; string version = 2; }
""",
    "google/type/phone_number.proto": """syntax = "proto3";
package google.type;
message PhoneNumber {
  message ShortCode { string region_code = 1; string number = 2; }
  oneof kind { string e164_number = 1; ShortCode short_code = 2; }
  string extension = 3;
}
""",
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/types/decimal.proto": 'syntax = "proto3";\nimport public "confluent/type/decimal.proto";\n',
}


def _message(path: str, definition: str) -> str:
    name, _, fields = definition.partition(": ")
    lines = [f"  {field} = {number};" for number, field in enumerate(fields.split(", "), 1)]
    imports = [
        f'import "google/protobuf/{file}.proto";'
        for file, used in (("timestamp", "Timestamp"), ("wrappers", "FloatValue"))
        if f"google.protobuf.{used}" in fields
    ]
    return "\n".join(
        ['syntax = "proto3";', f"package {_package(path)};", *imports, f"message {name} {{", *lines, "}", ""]
    )


def _enum(path: str, definition: str) -> str:
    name, _, values = definition.partition(": ")
    lines = [f"  {value} = {number};" for number, value in enumerate(values.split())]
    return "\n".join(['syntax = "proto3";', f"package {_package(path)};", f"enum {name} {{", *lines, "}", ""])


def _package(path: str) -> str:
    return path.rpartition("/")[0].replace("/", ".")


WELL_KNOWN_FILES: Final = (
    {path: _message(path, definition) for path, definition in _MESSAGES.items()}
    | {path: _enum(path, definition) for path, definition in _ENUMS.items()}
    | _TEXTS
)
"""Text of each file by path."""
