// KafkaJS as a member of a group. test_kafka_programs.py checks what it prints.
// Usage: kafkajs_group.js BOOTSTRAP TOPIC GROUP COUNT

const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, groupId, count] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
const say = (what, value) => console.log(JSON.stringify([what, value]));

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
  say("state", [described.groups[0].state, described.groups[0].members.length]);
  say("listed", (await admin.listGroups()).groups.some((one) => one.groupId === groupId));
  await consumer.disconnect();
  say("read", read.sort());
  const offsets = await admin.fetchOffsets({ groupId, topics: [topic] });
  say("committed", offsets[0].partitions.map((one) => [one.partition, Number(one.offset)]).sort());
  await admin.resetOffsets({ groupId, topic, earliest: true });
  await admin.deleteGroups([groupId]);
  say("deleted", !(await admin.listGroups()).groups.some((one) => one.groupId === groupId));
  await admin.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
