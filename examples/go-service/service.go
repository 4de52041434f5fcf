// Package payments reads orders from Kafka and charges each of them, with the consumer group of franz-go.
package payments

import (
	"context"
	"log"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Topic is the topic of the orders in production: the key is the order's id, the value what to charge.
const Topic = "orders"

// Charge takes the money for one order. It may be called twice for the same order, so it must be idempotent.
type Charge func(ctx context.Context, order, cents string) error

// Run charges orders until ctx ends. An order is committed after its charge, and never before.
//
// BlockRebalanceOnPoll keeps a partition while its records are charged. So a rebalance never hands an order
// to another process in the middle of a charge. A fence can, and then the order is charged again.
// Options in more override those of the service.
func Run(ctx context.Context, servers, topic, group, clientID string, charge Charge, more ...kgo.Opt) error {
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(servers, ",")...),
		kgo.ClientID(clientID),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	}, more...)...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()

	for {
		fetches := client.PollRecords(ctx, 10)
		if ctx.Err() != nil {
			return nil
		}
		// franz-go reports lost connections and lost group sessions here, and recovers from both.
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Printf("fetching %s-%d: %v", topic, partition, err)
		})
		if err := work(ctx, client, fetches, charge); err != nil {
			return err
		}
		client.AllowRebalance()
	}
}

func work(ctx context.Context, client *kgo.Client, fetches kgo.Fetches, charge Charge) error {
	for _, record := range fetches.Records() {
		if err := charge(ctx, string(record.Key), string(record.Value)); err != nil {
			return err
		}
		// A member that was fenced can't commit: it joins again, and reads the order again.
		// If the broker is away, the next commit of the partition covers this one.
		if err := client.CommitRecords(ctx, record); err != nil {
			log.Printf("committing %s: %v", record.Key, err)
		}
	}
	return nil
}
