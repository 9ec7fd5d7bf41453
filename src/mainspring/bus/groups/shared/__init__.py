"""Groups whose members are connected to several nodes of one log.

    supply        the strategy: what a node takes, settles, returns and writes; where groups start and are moved to
    position      what one node knows of one partition of a group: the shared record, the claims, its own writes
    transfer      which events one write takes, passes on and returns
    records       claims and presences as they are stored
    presence      which members the other nodes have, and what they want
    change_feed   all nodes' commits, as the log reports them

One group in one partition, on two nodes. Every event is in exactly one place of the log, or settled:

    the log       groups/T|G|P        shared record: cursor 9, free {4}        written by every node
                  claims/T|G|P|epoch  A has {5, 6}        B has {7, 8}         written by its node alone
                  members/T|G|epoch   A: 2 members        B: 1 member          written by its node alone
                       ^                                   |
               batches | guarded by the node's lease       | every commit, in one order, to all nodes
               with the versions they expect               v
    node A        SharedSupply <------------------- ChangeFeed ----> topics, schemas, schedules
                   |    |    |                          |
                   |    |    +---> Presence <-----------+  remote members and their filters
                   |    |                               |
                   |    +--------> SharedPosition <-----+  version, free, claims, writes in doubt
                   |                 |
                   | Transfer        | position.shared
                   | (one write)     v
                   |              Position: open {5, 6}, the events of A's claim, as on a node that is alone
                   v                 |
                  Group -------------+  leases 5 and 6 to A's members; never more than A has taken

    take       free or new events -> A's claim     shared record and claim, as soon as members here have room
    settle     out of A's claim                    claim only, a few ms after an acknowledgement
    return     A's claim -> free events            shared record and claim, when no member here can have them
    take over  a dead node's claim -> free events  shared record and that claim, by the first node that sees to it
    move       everything -> settled or new        shared record (one more `generation`) and all claims

A write that is refused, or whose answer is lost, concludes nothing: the change feed shows what the log holds, and the
next write starts from there.
"""
