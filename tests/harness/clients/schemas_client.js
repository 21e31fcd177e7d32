// Serializers of @confluentinc/schemaregistry with the schema registry; test_schema_serializers.py checks the output.
// Usage: schemas_client.js REGISTRY-URL. It reads one command per line, in JSON, and prints one response:
//   ["write", FORMAT, TOPIC, ID, NAME]      prints ["wrote", BASE64 OF THE VALUE, BASE64 OF THE HEADER OR NULL]
//   ["read", FORMAT, TOPIC, BASE64, HEADER] prints ["read", ID, NAME]

const { create, createFileRegistry } = require("@bufbuild/protobuf");
const { FileDescriptorSetSchema, FieldDescriptorProto_Type: Kind } = require("@bufbuild/protobuf/wkt");
const registry = require("@confluentinc/schemaregistry");

const client = new registry.SchemaRegistryClient({ baseURLs: [process.argv[2]] });
const HEADER = "__value_schema_id";
const LATEST = { autoRegisterSchemas: false, useLatestVersion: true };

const field = (name, number, type, typeName) => ({ name, number, type, typeName, label: 1 });
const file = (name, message, dependency, fields) => ({
  name, dependency, package: "shop", syntax: "proto3", messageType: [{ name: message, field: fields }],
});
const files = createFileRegistry(
  create(FileDescriptorSetSchema, {
    file: [
      file("customer.proto", "Customer", [], [field("name", 1, Kind.STRING)]),
      file("order.proto", "Order", ["customer.proto"], [
        field("id", 1, Kind.INT64),
        field("customer", 2, Kind.MESSAGE, ".shop.Customer"),
      ]),
    ],
  }),
);

function serializer(format) {
  switch (format) {
    case "avro":
      return new registry.AvroSerializer(client, registry.SerdeType.VALUE, LATEST);
    case "avro-own": // with the schema that it derives from the value
      return new registry.AvroSerializer(client, registry.SerdeType.VALUE, { autoRegisterSchemas: true });
    case "avro-guid": {
      const conf = { ...LATEST, schemaIdSerializer: registry.HeaderSchemaIdSerializer };
      return new registry.AvroSerializer(client, registry.SerdeType.VALUE, conf);
    }
    case "json":
      return new registry.JsonSerializer(client, registry.SerdeType.VALUE, { ...LATEST, validate: true });
    case "protobuf": {
      const conf = { autoRegisterSchemas: true, registry: files };
      const serializer = new registry.ProtobufSerializer(client, registry.SerdeType.VALUE, conf);
      serializer.registry.add(files.getMessage("shop.Order"));
      return serializer;
    }
  }
}

function deserializer(format) {
  if (format === "json") return new registry.JsonDeserializer(client, registry.SerdeType.VALUE, { validate: true });
  if (format === "protobuf") return new registry.ProtobufDeserializer(client, registry.SerdeType.VALUE, {});
  return new registry.AvroDeserializer(client, registry.SerdeType.VALUE, {});
}

function value(format, id, name) {
  if (format !== "protobuf") return { id, customer: { name } };
  const [order, customer] = [files.getMessage("shop.Order"), files.getMessage("shop.Customer")];
  return create(order, { id: BigInt(id), customer: create(customer, { name }) });
}

async function respond([command, format, topic, ...rest]) {
  const headers = {};
  if (command === "write") {
    const bytes = await serializer(format).serialize(topic, value(format, ...rest), headers);
    const header = headers[HEADER] ? Buffer.from(headers[HEADER]).toString("base64") : null;
    return ["wrote", bytes.toString("base64"), header];
  }
  const [bytes, header] = rest;
  if (header) headers[HEADER] = Buffer.from(header, "base64");
  const order = await deserializer(format).deserialize(topic, Buffer.from(bytes, "base64"), headers);
  return ["read", Number(order.id), order.customer.name];
}

async function main() {
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await respond(JSON.parse(line))));
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
