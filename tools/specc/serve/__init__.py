"""`specc serve`: an artifact behind OpenAI's HTTP interface. Imports neither torch nor the compiler.

    app         HTTP: routes, keys, limits, streams     bodies    what a request may say
    service     requests -> jobs, replies               answers   what is sent back
    scheduler   whose turn it is, who waits             metrics   /metrics
    slots       one turn of one text, over the C ABI    policy    who drafts it
    opening     what a server, or each replica, opens   replicas  several processes, by Ray Serve

The seam for continuous batching is `slots.Slots`: a batch of the engine is another implementation of it.
"""
