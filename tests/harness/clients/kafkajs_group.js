// KafkaJS as a member of a group; test_kafka_programs.py checks the output.
// Usage: kafkajs_group.js BOOTSTRAP TOPIC GROUP COUNT

const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, groupId, count] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
const print = (name, value) => console.log(JSON.stringify([name, value]));

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  const consumer = kafka.consumer({ groupId, sessionTimeout: 10000 });
  const read = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve) => {
    consumer.run({
      partitionsConsumedConcurrently: 1,
      eachMessage: async ({ partition, message }) => {
        read.push([partition, Number(message.offset), message.value.toString()]);
        if (read.length === Number(count)) resolve();
      },
    });
  });
  const described = await admin.describeGroups([groupId]);
  print("state", [described.groups[0].state, described.groups[0].members.length]);
  print("listed", (await admin.listGroups()).groups.some((group) => group.groupId === groupId));
  await consumer.disconnect();
  print("read", read.sort());
  const offsets = await admin.fetchOffsets({ groupId, topics: [topic] });
  print("committed", offsets[0].partitions.map((offset) => [offset.partition, Number(offset.offset)]).sort());
  await admin.resetOffsets({ groupId, topic, earliest: true });
  await admin.deleteGroups([groupId]);
  print("deleted", !(await admin.listGroups()).groups.some((group) => group.groupId === groupId));
  await admin.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
