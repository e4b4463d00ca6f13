// What go-nsq does in the scenarios of bench_clients.py. `./dev bench` builds it.
module nsqflow/benchmarks/client

go 1.24 // as the servers in tools/nsqd

require github.com/nsqio/go-nsq v1.1.0

require github.com/golang/snappy v0.0.4 // indirect
