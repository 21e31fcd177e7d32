// Serializers of confluent-kafka-go with the schema registry; test_schema_serializers.py checks the output.
// Usage: schemas_client REGISTRY-URL. It reads one command per line, in JSON, and prints one response:
//   ["write", FORMAT, TOPIC, ID, NAME]      prints ["wrote", BASE64 OF THE VALUE, GUID IN THE HEADER OR NULL]
//   ["read", FORMAT, TOPIC, BASE64, GUID]   prints ["read", ID, NAME]

package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/serde"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/serde/avrov2"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/serde/jsonschema"
	"github.com/confluentinc/confluent-kafka-go/v2/schemaregistry/serde/protobuf"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

type Customer struct {
	Name string `json:"name" avro:"name"`
}

type Order struct {
	Id       int64    `json:"id" avro:"id"`
	Customer Customer `json:"customer" avro:"customer"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func field(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, typeName string) *descriptorpb.FieldDescriptorProto {
	label := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
	descriptor := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind, Label: &label}
	if typeName != "" {
		descriptor.TypeName = &typeName
	}
	return descriptor
}

func file(name string, message string, dependencies []string, fields ...*descriptorpb.FieldDescriptorProto) protoreflect.FileDescriptor {
	descriptor, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name:        &name,
		Package:     proto.String("shop"),
		Syntax:      proto.String("proto3"),
		Dependency:  dependencies,
		MessageType: []*descriptorpb.DescriptorProto{{Name: &message, Field: fields}},
	}, protoregistry.GlobalFiles)
	check(err)
	check(protoregistry.GlobalFiles.RegisterFile(descriptor))
	check(protoregistry.GlobalTypes.RegisterMessage(dynamicpb.NewMessageType(descriptor.Messages().Get(0))))
	return descriptor
}

func protoOrder(id int64, name string) proto.Message {
	files, err := protoregistry.GlobalFiles.FindFileByPath("order.proto")
	check(err)
	order := dynamicpb.NewMessage(files.Messages().Get(0))
	whole, err := json.Marshal(Order{id, Customer{name}})
	check(err)
	check(protojson.Unmarshal(whole, order))
	return order
}

func main() {
	client, err := schemaregistry.NewClient(schemaregistry.NewConfig(os.Args[1]))
	check(err)
	file("customer.proto", "Customer", nil, field("name", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING, ""))
	file("order.proto", "Order", []string{"customer.proto"},
		field("id", 1, descriptorpb.FieldDescriptorProto_TYPE_INT64, ""),
		field("customer", 2, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, ".shop.Customer"))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var command []any
		check(json.Unmarshal(lines.Bytes(), &command))
		format, topic := command[1].(string), command[2].(string)
		var response []any
		if command[0] == "write" {
			response = write(client, format, topic, int64(command[3].(float64)), command[4].(string))
		} else {
			value, err := base64.StdEncoding.DecodeString(command[3].(string))
			check(err)
			guid, _ := command[4].(string)
			response = read(client, format, topic, value, guid)
		}
		text, err := json.Marshal(response)
		check(err)
		fmt.Println(string(text))
	}
}

func write(client schemaregistry.Client, format string, topic string, id int64, name string) []any {
	var serializer serde.Serializer
	var value any = &Order{id, Customer{name}}
	switch format {
	case "avro": // with the registered schema, which has a reference
		conf := avrov2.NewSerializerConfig()
		conf.AutoRegisterSchemas, conf.UseLatestVersion = false, true
		made, err := avrov2.NewSerializer(client, serde.ValueSerde, conf)
		check(err)
		serializer = made
	case "avro-own": // with the schema that it derives from the struct
		made, err := avrov2.NewSerializer(client, serde.ValueSerde, avrov2.NewSerializerConfig())
		check(err)
		serializer = made
	case "avro-guid":
		conf := avrov2.NewSerializerConfig()
		conf.AutoRegisterSchemas, conf.UseLatestVersion = false, true
		made, err := avrov2.NewSerializer(client, serde.ValueSerde, conf)
		check(err)
		made.SchemaIDSerializer = serde.HeaderSchemaIDSerializer
		serializer = made
	case "json":
		conf := jsonschema.NewSerializerConfig()
		conf.AutoRegisterSchemas, conf.UseLatestVersion, conf.EnableValidation = false, true, true
		made, err := jsonschema.NewSerializer(client, serde.ValueSerde, conf)
		check(err)
		serializer = made
	case "protobuf":
		made, err := protobuf.NewSerializer(client, serde.ValueSerde, protobuf.NewSerializerConfig())
		check(err)
		serializer, value = made, protoOrder(id, name)
	}
	headers, payload, err := serializer.SerializeWithHeaders(topic, value)
	check(err)
	var guid any
	for _, header := range headers {
		guid = base64.StdEncoding.EncodeToString(header.Value)
	}
	return []any{"wrote", base64.StdEncoding.EncodeToString(payload), guid}
}

func read(client schemaregistry.Client, format string, topic string, value []byte, guid string) []any {
	var deserializer serde.Deserializer
	var order Order
	switch format {
	case "avro", "avro-own", "avro-guid":
		made, err := avrov2.NewDeserializer(client, serde.ValueSerde, avrov2.NewDeserializerConfig())
		check(err)
		deserializer = made
	case "json":
		made, err := jsonschema.NewDeserializer(client, serde.ValueSerde, jsonschema.NewDeserializerConfig())
		check(err)
		deserializer = made
	case "protobuf":
		made, err := protobuf.NewDeserializer(client, serde.ValueSerde, protobuf.NewDeserializerConfig())
		check(err)
		made.ProtoRegistry = protoregistry.GlobalTypes
		message, err := made.Deserialize(topic, value)
		check(err)
		whole, err := protojson.Marshal(message.(proto.Message))
		check(err)
		var fields map[string]any
		check(json.Unmarshal(whole, &fields))
		return []any{"read", fields["id"], fields["customer"].(map[string]any)["name"]}
	}
	var headers []kafka.Header
	if guid != "" {
		raw, err := base64.StdEncoding.DecodeString(guid)
		check(err)
		headers = []kafka.Header{{Key: serde.ValueSchemaIDHeader, Value: raw}}
	}
	check(deserializer.DeserializeWithHeadersInto(topic, headers, value, &order))
	return []any{"read", order.Id, order.Customer.Name}
}
