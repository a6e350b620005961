import CSpecc
import Foundation

/// What specc said of a failure: its code, what, where and the cure.
public struct SpeccError: Error, CustomStringConvertible {
    public let description: String
    static func last() -> SpeccError { SpeccError(description: String(cString: specc_last_error())) }
}

/// A model that is linked into the app. One text at a time.
public final class Specc {
    /// The artifact's files, mapped: they stay where they are until the model is freed.
    private final class Files {
        let folder: URL
        var mapped: [String: NSData] = [:]
        init(_ folder: URL) { self.folder = folder }

        func find(_ name: String) -> NSData? {
            if mapped[name] == nil {
                mapped[name] = try? NSData(contentsOf: folder.appendingPathComponent(name), options: .alwaysMapped)
            }
            return mapped[name]
        }
    }

    private let files: Files
    private var artifact: OpaquePointer?
    private var session: OpaquePointer?

    public init(folder: URL, threads: Int32 = 0) throws {
        files = Files(folder)
        var source = specc_source()
        source.size = MemoryLayout<specc_source>.size
        source.user = Unmanaged.passUnretained(files).toOpaque()
        source.find = { user, name, data, size in
            let files = Unmanaged<Files>.fromOpaque(user!).takeUnretainedValue()
            guard let found = files.find(String(cString: name!)) else { return 0 }
            data!.pointee = found.bytes
            size!.pointee = found.length
            return 1
        }
        source.model = { specc_model_entry() }
        try withUnsafePointer(to: specc_model_build) { build in
            source.build = UnsafeRawPointer(build).assumingMemoryBound(to: CChar.self)
            try check(specc_artifact_load_from(&source, threads, &artifact))
        }
        try check(specc_session_open(artifact, &session))
    }

    deinit {
        if session != nil { specc_session_close(session) }
        if artifact != nil { specc_artifact_free(artifact) }
    }

    /// The answer to `prompt`, piece by piece.
    public func generate(_ prompt: String, maxTokens: Int64 = 128) -> AsyncThrowingStream<String, Error> {
        AsyncThrowingStream { stream in
            Task.detached { [self] in
                do {
                    try start(prompt, maxTokens)
                    var ids: [Int64] = []
                    var given = 0
                    while let token = try next() {
                        ids.append(token)
                        var text = try self.text(ids)
                        while text.hasSuffix("\u{FFFD}") { text.removeLast() }  // half a character waits
                        let all = Array(text.utf8)
                        if all.count > given { stream.yield(String(decoding: all[given...], as: UTF8.self)) }
                        given = max(given, all.count)
                    }
                    stream.finish()
                } catch {
                    stream.finish(throwing: error)
                }
            }
        }
    }

    private func start(_ prompt: String, _ maxTokens: Int64) throws {
        var count = 0
        let bytes = prompt.utf8.count
        try check(specc_tokenize(artifact, prompt, bytes, 1, 1, nil, 0, &count))
        var ids = [Int64](repeating: 0, count: count)
        try check(specc_tokenize(artifact, prompt, bytes, 1, 1, &ids, count, &count))
        try check(specc_session_set_int(session, "max_tokens", maxTokens))
        try check(specc_session_append(session, ids, count))
    }

    private func next() throws -> Int64? {
        var token: Int64 = 0
        let result = specc_session_next(session, &token)
        if result == SPECC_DONE { return nil }
        try check(result)
        return token
    }

    private func text(_ ids: [Int64]) throws -> String {
        var bytes = 0
        try check(specc_detokenize(artifact, ids, ids.count, 1, nil, 0, &bytes))
        var text = [CChar](repeating: 0, count: bytes)
        try check(specc_detokenize(artifact, ids, ids.count, 1, &text, bytes, &bytes))
        return String(decoding: text.prefix(bytes).map(UInt8.init(bitPattern:)), as: UTF8.self)
    }

    private func check(_ result: specc_result) throws {
        if result != SPECC_OK { throw SpeccError.last() }
    }
}
