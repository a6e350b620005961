package dev.specc

import android.content.Context
import java.io.File

/** A model that is linked into the app. One text at a time; calls may come from any thread, but one by one. */
class Specc(context: Context, threads: Int = 0) : AutoCloseable {
    private val handle = open(unpacked(context).path.toByteArray(), threads)

    /** The answer to [prompt], piece by piece; at most [maxTokens] tokens. Throws IllegalStateException with specc's text. */
    fun generate(prompt: String, maxTokens: Int = 128): Sequence<String> {
        start(handle, prompt.toByteArray(), maxTokens)
        return generateSequence { next(handle)?.toString(Charsets.UTF_8) }
    }

    override fun close() = close(handle)

    private companion object {
        val FILES = listOf("manifest.json", "tokenizer.bin", "weights.safetensors")

        init {
            System.loadLibrary("specc_jni")
        }

        /** Weights are mapped, from a file that begins on a page: assets lie anywhere in the package. */
        fun unpacked(context: Context): File {
            val folder = File(context.filesDir, "specc-${context.packageManager.getPackageInfo(context.packageName, 0).lastUpdateTime}")
            for (name in FILES) {
                val file = File(folder, name)
                if (file.exists()) continue
                folder.mkdirs()
                val part = File(folder, "$name.part")
                context.assets.open(name).use { from -> part.outputStream().use { from.copyTo(it) } }
                part.renameTo(file)
            }
            return folder
        }

        @JvmStatic external fun open(folder: ByteArray, threads: Int): Long
        @JvmStatic external fun start(handle: Long, prompt: ByteArray, maxTokens: Int)
        @JvmStatic external fun next(handle: Long): ByteArray?
        @JvmStatic external fun close(handle: Long)
    }
}
