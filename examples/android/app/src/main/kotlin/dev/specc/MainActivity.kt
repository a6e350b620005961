package dev.specc

import android.app.Activity
import android.os.Bundle
import android.widget.TextView
import kotlin.concurrent.thread

class MainActivity : Activity() {
    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        val view = TextView(this)
        setContentView(view)
        thread {
            Specc(applicationContext).use { model ->
                for (piece in model.generate("The sea is")) runOnUiThread { view.append(piece) }
            }
        }
    }
}
