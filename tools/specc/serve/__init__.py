"""`specc serve`: an artifact behind OpenAI's HTTP interface. Imports neither torch nor the compiler.

    app         HTTP: routes, keys, limits, streams     bodies    what a request may say
    service     requests -> jobs, replies               answers   what is sent back
    scheduler   whose turn it is, who waits             metrics   /metrics
    slots       one turn of one text, over the C ABI

The seam for continuous batching is `slots.Slots`: a batch of the engine is another implementation of it.
"""
