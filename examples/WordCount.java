// Counts words with Kafka Streams, exactly once: each word counts once even if this program or a broker is killed.
//
//     ~/.cache/lakestream/bin/kafka-apps-class examples/WordCount.java [BOOTSTRAP] [setting=value ...]
//
// Reads the topic `lines`, keeps its counts in a state store with a changelog topic, and writes every new count to the
// topic `counts`. The offsets, the changelog and the counts are committed in one transaction. Stop it with Ctrl-C or
// kill -9.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

public class WordCount {
    static final String LINES = "lines";
    static final String COUNTS = "counts";
    static final int PARTITIONS = 2;

    public static void main(String[] args) throws Exception {
        Properties settings = settings(args);
        createTopics(settings.getProperty("bootstrap.servers"));
        var stopped = new CountDownLatch(1);
        var streams = new KafkaStreams(topology(), settings);
        streams.setStateListener((state, previous) -> {
            System.out.println(state);
            if (state == KafkaStreams.State.ERROR || state == KafkaStreams.State.NOT_RUNNING) {
                stopped.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        stopped.await();
    }

    static Topology topology() {
        var builder = new StreamsBuilder();
        var text = Serdes.String();
        builder.stream(LINES, Consumed.with(text, text))
                .flatMapValues(line -> List.of(line.toLowerCase().split("\\W+")))
                .filter((key, word) -> !word.isEmpty())
                .groupBy((key, word) -> word, Grouped.with(text, text))
                .count()
                .mapValues(String::valueOf)
                .toStream()
                .to(COUNTS, Produced.with(text, text));
        return builder.build();
    }

    static Properties settings(String[] args) {
        var settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "127.0.0.1:9092");
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // every new count is written; a cache would skip some
        for (String argument : args) {
            String[] parts = argument.split("=", 2);
            settings.put(parts.length == 1 ? StreamsConfig.BOOTSTRAP_SERVERS_CONFIG : parts[0], parts[parts.length - 1]);
        }
        return settings;
    }

    /** Creates the input and output topics. Kafka Streams creates only its internal topics. */
    static void createTopics(String bootstrap) throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            Set<String> existing = admin.listTopics().names().get();
            admin.createTopics(Stream.of(LINES, COUNTS)
                    .filter(name -> !existing.contains(name))
                    .map(name -> new NewTopic(name, PARTITIONS, (short) 1))
                    .toList()).all().get();
        }
    }
}
