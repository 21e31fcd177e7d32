// Admin requests and produce requests of KafkaJS; test_kafka_programs.py checks the output.
// Usage: kafkajs_client.js BOOTSTRAP TOPIC

const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const [bootstrap, topic] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
const print = (name, value) => console.log(JSON.stringify([name, value]));

async function administer(admin) {
  const configEntries = [{ name: "retention.ms", value: "1000000" }];
  const newTopic = { topic, numPartitions: 2, configEntries };
  print("created", await admin.createTopics({ topics: [newTopic] }));
  print("created again", await admin.createTopics({ topics: [newTopic] }));
  print("listed", (await admin.listTopics()).includes(topic));
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  const metadata = await admin.fetchTopicMetadata({ topics: [topic] });
  print("partitions", metadata.topics[0].partitions.length);
  const resource = { type: 2, name: topic };
  await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: "retention.ms", value: "2000000" }] }] });
  const described = await admin.describeConfigs({ resources: [{ ...resource, configNames: ["retention.ms"] }] });
  print("retention", described.resources[0].configEntries[0].configValue);
  print("brokers", (await admin.describeCluster()).brokers.length);
}

async function produce(idempotent, compression) {
  const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = [
    { partition: 1, key: "key", value: "value", headers: { a: ["1", "2"], b: "3" }, timestamp: "1000000000000" },
    { partition: 1, key: null, value: "" },
    { partition: 1, key: "tombstone", value: null },
  ];
  const [sent] = await producer.send({ topic, acks: -1, compression, messages });
  print("sent", [sent.errorCode, Number(sent.baseOffset)]);
  await producer.disconnect();
}

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  await administer(admin);
  await produce(false, CompressionTypes.None);
  await produce(true, CompressionTypes.GZIP);
  const offsets = await admin.fetchTopicOffsets(topic);
  print("offsets", offsets.map((offset) => [offset.partition, Number(offset.low), Number(offset.high)]).sort());
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 1, offset: "2" }] });
  const later = await admin.fetchTopicOffsets(topic);
  print("low", Number(later.find((offset) => offset.partition === 1).low));
  await admin.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
